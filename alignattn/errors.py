"""The one exception for what a user can mend."""


class AlignAttnError(ValueError):
    """A mistake a user can mend: a wrong name, a missing file, an unsupported model.

    The message is one line that says what is wrong and what to do. The command line catches this class
    once, prints that line and exits with code 2.
    """
