"""Pods: manifests read, and run as local processes."""
