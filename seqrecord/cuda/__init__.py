"""CUDA: rows and batches on a GPU, and torchcodec. Experimental: it has run on one GPU only.

With `device="cuda"` decoded frames cross to the GPU once, through pinned memory on a side stream,
and batches are gathered there. Tests use a stand-in of CUDA on the CPU that checks the order of
streams.

Read first, in this order:

- `devices`: what the loader loads for `device=`.
- `streams`: `SideStream`, marks, and the rules that keep memory alive between streams.
- `buffers`: rows of frames and gathers of batches on a device.
- `video`: video decoded by torchcodec into the device's memory.
- `tests/cuda/fake_cuda.py`: the stand-in.
- `benchmarks/tartanair/device.py`: the figures to measure on a GPU.

Extend it: another kind of device is a `SideStream`.

May import: `store`, `loader`, `video`. Tests: `make test-part PART=cuda`.
"""
