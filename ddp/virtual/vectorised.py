# stub
MANY = 16


class VectorisedRanks: ...


def unfit(job):
    return "x"
