"""The access load: an operator who changes users and roles, and programs that read, write and watch as these users."""
