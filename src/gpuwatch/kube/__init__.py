"""Reading a cluster, live or recorded, and writing to one. The only room that imports the Kubernetes client.

    live.connect ─▶ LiveCluster ──────┐ raw JSON of each object        ┌─ nodes, pods, claims
    recorded.RecordedCluster ─────────┴─▶ assemble ─▶ wire (Structs) ─▶┤─ owners ─▶ gangs
                                                                       └─ Cluster, gaps listed

Both sources hand over raw JSON of single objects; from there on there is one path. `kinds` is the table of what is
listed and how, `gangs` the table of frameworks, `keys` the keys that owners may set.

Writing: `writer` says what every writer answers and how it fails; `live_writer` is the writer. `adapters` is the
table of how each owner kind is released and restored, `moving` how its Pods move, and `fights` finds who would undo it.
"""
