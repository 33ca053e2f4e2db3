"""What every part of the harness needs: exit codes, usage errors, number formats, style, this machine. Imports no other
part."""
