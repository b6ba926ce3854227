//go:build tools

// Package tools pins the registry that the tests of other people's clusters pull from.
package tools

import (
	_ "github.com/distribution/distribution/v3/cmd/registry"
)
