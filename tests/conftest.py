"""One thread a process: on two cores, two workers of two threads each wait for one another most of the time."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, here and in the processes that tests start
