"""What every part of the harness needs: exit codes, errors of use, figures, style, this machine. Imports no other part."""
