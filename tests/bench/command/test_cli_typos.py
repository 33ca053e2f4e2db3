"""What is misspelt or impossible on the command line: one line that names the remedy, exit code 2, nothing written."""

from __future__ import annotations

import pytest

from tests.slow import every

TYPOS = [
    ("sede=1", "did you mean 'seed'"),
    ("epochs=1", "did you mean 'train.epochs'"),
    ("train.epoch=1", "did you mean 'train.epochs'"),
    ("policy.anchr=1", "did you mean 'policy.anchor'"),
    ("policy=sync policy.anchor=1", "no setting of the chosen policy"),
    ("+sede=1", "did you mean 'seed'"),
    ("+policy.anchr=1", "did you mean 'anchor'"),
    ("+seed=1", "without the +"),
    ("+mode=solo", "without the +"),
    ("~model", "model is missing"),
    ("modle=mlp", "did you mean 'model'"),
    ("model=mpl", "did you mean 'mlp'"),
    ("mode=nccl_cadense", "did you mean 'nccl_cadence'"),
    ("experiment=smok", "did you mean 'smoke'"),
    ("policy=cadense", "did you mean 'cadence'"),
    ("recipe=quik", "did you mean 'quick'"),
    ("data.name=digit", "did you mean 'digits'"),
    ("world_size=two", "world_size=two"),
    ("world_size=0", "between 1 and 64"),
    ("seed=1.5", "seed=1.5"),
    ("seed=1,2", "add -m"),
    ("seed=range(0,3)", "add -m"),
    ("logger=csv,tensorboard", "or write 'logger=[csv,tensorboard]' for all of them at once"),
    ("model=[mlp,resnet_graph]", "add -m"),
    ("cluster.speeds=[1,a]", "cluster.speeds"),
    ("cluster.faults=1@9:crash", "cluster.faults is a list: write 'cluster.faults=[1@9:crash]'"),
    ("cluster.speeds=[0.5]", "1 values for 2 ranks"),
    ("cluster.speeds=[1", "close its brackets and quotes, and quote it for the shell"),
    ("cluster.speeds.x=1", "cluster.speeds has no settings of its own"),
    ("recipe.epochs=2", "recipe.epochs=2: a recipe has no settings of its own; use train.epochs=2"),
    ("+recipe.lr=2", "a recipe has no settings of its own; use train.lr=2"),
    ("mode.anchor=5", "a mode has no settings of its own; use policy.anchor=5"),
    ("engine.x=5", "an engine has no settings of its own; engine=... is all that can be said"),
    ("model=null", "model=null: what to choose has a name; leave model out, or see python -m bench list"),
    ("policy=5", "policy=5: what to choose has a name"),
    ("experiment=null", "experiment=null: what to choose has a name"),
    ("model=[[mlp]]", "model=[[mlp]]: what to choose has a name"),
    ("model=[mlp,5]", "model=[mlp,5]: what to choose has a name"),
    ("mode=solo,1.5", "mode=solo,1.5: what to choose has a name"),
    ("seed.x=5", "seed has no settings of its own"),
    ("data=mnist", "data=mnist: data has settings of its own: write data.name=mnist, or another of them"),
    ("train=5", "train has settings of its own: write train."),
    ("model.x=5", "unknown key 'model.x'"),
    ("output=a,b", """add -m to run one after the other, or write output="'a,b'" for one path"""),
    ("output=ü,b", """write output="'ü,b'" for one path, output="'ü','b'" for several"""),
    ("data.name=ü,b", """write data.name="'ü,b'\""""),
    ("data.name=ü", "unknown data set 'ü'"),
    ("a;b=1", "see --cfg job for the keys there are"),
    ("reprot runs", "did you mean report"),
    ("wat", "neither a command nor key=value"),
    ("model", "neither a command nor key=value; did you mean model="),
    ("--cgf job", "did you mean '--cfg'"),
    ("--cfg jbo", "invalid choice"),
    ("-m --cfg job", "only one of"),
    ("-sc", "--shell-completion needs install=SHELL"),
    ("-sc install=foo", "bash, fish or zsh"),
    ("-sc query=bash", "--shell-completion needs install=SHELL"),
    ("--resolve", "--cfg job --resolve"),
    ("seed=0,1 mode=nonsense", "unknown mode 'nonsense'"),
    ("experiment=ci seed=0,1 mode=nonsense", "unknown mode 'nonsense'"),
    ("plan experiment=ci seed=0,1 train.epochs=x", "train.epochs=x"),
    ("-m mode=solo,nccl_sinc", "did you mean 'nccl_sync'"),
    ("-m seed=1,x", "seed=x"),
    ("-m model=glob(resent*)", "nothing to run: no values in model=glob(resent*)"),
    ("-m seed=range(0,0)", "nothing to run: no values in seed=range(0,0)"),
    ("plan -m seed=range(3,0) model=glob(resent*)", "no values in seed=range(3,0), model=glob(resent*)"),
    ("experiment=smoke model=glob(resent*)", "no values in model=glob(resent*)"),
    ("list modls", "did you mean 'models'"),
    ("report --otu x", "did you mean --out"),
    ("report runs more", "unknown argument 'more'"),
    ("validate runs --jnit x", "did you mean --junit"),
]


@pytest.mark.parametrize(("said", "remedy"), every(2, TYPOS), ids=[said for said, _ in TYPOS])
def test_a_typo_is_one_line_and_leaves_nothing(bench, capsys, tmp_path, said, remedy):
    assert bench(*said.split()) == 2
    told = capsys.readouterr()
    assert remedy in told.err
    assert told.err.startswith("bench: ")
    assert len(told.err.splitlines()) == 1
    assert told.out == ""
    assert list(tmp_path.iterdir()) == []
