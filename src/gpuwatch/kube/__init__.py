"""Reading a cluster, live or recorded, and writing to one. The only room that imports the Kubernetes client.

    live.connect ─▶ LiveCluster ──────┐ raw JSON of each object        ┌─ nodes, pods, claims
    recorded.RecordedCluster ─────────┴─▶ assemble ─▶ wire (Structs) ─▶┤─ owners ─▶ gangs
                                                                       └─ Cluster, gaps listed

Both sources hand over raw JSON of single objects; from there on there is one path. `kinds` is the table of what is
listed and how; what is known of workload frameworks is in the room `frameworks`.

Writing: `writer` says what every writer answers and how it fails; `live_writer` is the writer.
"""
