"""Kubernetes: manifests for a cluster, what runs in their pods, and the same manifests as local processes."""
