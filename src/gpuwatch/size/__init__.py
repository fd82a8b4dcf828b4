"""Right-sizing advice, pure: profiles and the catalog in; recommendations, abstentions and the fleet MIG plan out."""
