// Loopcsi is a CSI driver for tests on one machine. A volume is a sparse file with an XFS file system in it,
// mounted by a loop device. So, unlike with a driver that makes folders, sizes are real: df shows them, a full
// volume gives ENOSPC, and an online expansion grows the mounted file system. XFS because growing a mounted
// ext4 needs CAP_SYS_RESOURCE, which a sandbox's root may lack.
//
// Each node runs one driver. All nodes are one machine with one folder of volumes, so any node can mount any
// volume; one that is mounted on a node still cannot be mounted on another.
//
// It registers itself with the kubelet and needs no registrar. Programs used: mkfs.xfs, mount, umount,
// losetup, xfs_growfs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	name := flag.String("name", "loop.csi.local", "name of the driver")
	socket := flag.String("socket", "", "CSI socket, below the kubelet's folder plugins/")
	register := flag.String("registration", "", "registration socket, in the kubelet's folder plugins_registry/")
	node := flag.String("node", "", "name of the node")
	data := flag.String("data", "", "folder of the volumes")
	flag.Parse()
	for flagName, value := range map[string]string{"socket": *socket, "registration": *register, "node": *node, "data": *data} {
		if value == "" {
			fmt.Fprintf(os.Stderr, "loopcsi: the flag --%s is required\n", flagName)
			os.Exit(2)
		}
	}
	if err := run(*name, *socket, *register, *node, *data); err != nil {
		log.Fatalf("loopcsi: %v", err)
	}
}

// run serves until one of the two servers ends.
func run(name, socket, register, node, data string) error {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return fmt.Errorf("could not make the folder of volumes: %w", err)
	}
	d := &driver{name: name, node: node, data: data}
	server := grpc.NewServer(grpc.UnaryInterceptor(logged))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	registrar := grpc.NewServer()
	registration.RegisterRegistrationServer(registrar, &announcer{name: name, socket: socket})

	// The CSI socket first: the kubelet calls back as soon as it sees the other.
	serving, err := listen(socket)
	if err != nil {
		return err
	}
	registering, err := listen(register)
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(serving) }()
	go func() { ended <- registrar.Serve(registering) }()
	return <-ended
}

// logged writes one line per call that concerns a volume or fails.
func logged(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	answer, err := handler(ctx, request)
	if err != nil || strings.Contains(info.FullMethod, "Volume") {
		log.Printf("%s err=%v", info.FullMethod, err)
	}
	return answer, err
}

// listen takes a socket over from a driver that was killed.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("could not listen on %s: %w", path, err)
	}
	return listener, nil
}

// announcer tells the kubelet where the driver is.
type announcer struct {
	registration.UnsafeRegistrationServer
	name   string
	socket string
}

// GetInfo names the driver and its socket.
func (r *announcer) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              r.name,
		Endpoint:          r.socket,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus logs what the kubelet made of it.
func (r *announcer) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	log.Printf("registered=%v %s", status.PluginRegistered, status.Error)
	return &registration.RegistrationStatusResponse{}, nil
}
