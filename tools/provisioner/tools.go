//go:build tools

// Package tools pins the commands that the local clusters run.
package tools

import (
	_ "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"
)
