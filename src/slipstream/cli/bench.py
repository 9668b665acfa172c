EPILOG = ""


def command() -> None: ...
