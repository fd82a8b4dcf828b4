"""Reading a cluster, live or recorded. The only room that imports the Kubernetes client, and only `live` does.

    live.connect ─▶ LiveCluster ──────┐ raw JSON of each object        ┌─ nodes, pods, claims
    recorded.RecordedCluster ─────────┴─▶ assemble ─▶ wire (Structs) ─▶┤─ owners ─▶ gangs
                                                                       └─ Cluster, gaps listed

Both sources hand over raw JSON of single objects; from there on there is one path. `kinds` is the table of what is
listed and how, `gangs` the table of frameworks, `keys` the keys that owners may set.
"""
