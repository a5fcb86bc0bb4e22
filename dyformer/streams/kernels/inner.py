"""A function that only compiled functions call -> machine code within theirs.

`njit` would make each of them callable from Python and from C as well, which took two fifths of the time to compile
the kernels of rows. Python runs such a function as it stands.
"""

from typing import Any

from numba.extending import register_jitable

inner_njit: Any = register_jitable(no_cfunc_wrapper=True)  # by itself it leaves out the entry from Python alone
