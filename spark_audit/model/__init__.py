"""What a register and a whole store do: the sequential specification that histories are judged by."""
