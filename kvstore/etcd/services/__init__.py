"""The handlers of the calls, one file for each service of etcd. A handler takes the context of a call and the message
of the client, and returns the response; the handler of a stream sends its responses itself.

A handler waits only by `Context` and by the call, so that every host can run it (`kvstore.etcd.coroutines`).
"""
