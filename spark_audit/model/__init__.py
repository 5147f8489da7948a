"""The sequential specification that histories are judged by: the register of one key, and the whole store."""
