// CoreDNS with the four plugins that answer for a cluster, and no other.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
)

func init() { dnsserver.Directives = []string{"bind", "errors", "log", "kubernetes"} }

func main() { coremain.Run() }
