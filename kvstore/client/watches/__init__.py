"""The watches of a client: what one watch has received (`watch_stream`), which member serves each watch
(`watch_keeper`), and the async iterator of an application (`watch`).
"""
