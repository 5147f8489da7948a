"""The watches of a client: what one watch has received (`watch_stream`), where each one stands (`watch_keeper`), and
the async iterator of an application (`watch`). The connections and the calls do not belong here.
"""
