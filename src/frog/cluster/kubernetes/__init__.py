"""Pods: reads manifests and runs their pods as local processes."""
