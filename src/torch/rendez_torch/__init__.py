"""The extension of `rendez.torch`, built against one version of PyTorch. Import `rendez.torch` instead of this."""

import torch

#: The version of PyTorch that this was built against.
BUILT_FOR = None
try:
    from ._built_for import BUILT_FOR
except ImportError:
    pass


def check_version():
    """Raises unless the PyTorch that runs is of the minor version that this was built against."""
    if BUILT_FOR is None:
        return
    built, runs = (".".join(text.split("+")[0].split(".")[:2]) for text in (BUILT_FOR, torch.__version__))
    if built != runs:
        raise ImportError(
            f"rendez-torch was built for PyTorch {built}, and {torch.__version__} is installed: "
            "build it again, in a clone of rendez: "
            "`pip install --no-build-isolation --force-reinstall --no-deps ./src/torch`"
        )
