// etcd's server, as its own main does it: built from the Go module proxy where no release binary is at hand.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
