"""Commands of `hwm` that read, write and watch keys, and that compact the history of keys."""
