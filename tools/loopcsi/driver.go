package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// smallest is the least size for which mkfs.xfs makes a file system.
const smallest = int64(300 << 20)

// driver is all three CSI services of one node.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	name string
	node string
	data string
	// mutex serialises all that changes files or mounts.
	mutex sync.Mutex
}

func (d *driver) image(volume string) string {
	return filepath.Join(d.data, filepath.Base(volume)+".img")
}

// command runs a program and returns what it printed.
func command(name string, arguments ...string) (string, error) {
	output, err := exec.Command(name, arguments...).CombinedOutput()
	text := strings.TrimSpace(string(output))
	if err != nil {
		return text, status.Errorf(codes.Internal, "%s %s: %v: %s", name, strings.Join(arguments, " "), err, text)
	}
	return text, nil
}

// mounted tells whether something is mounted at a path.
func mounted(path string) (bool, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return false, status.Error(codes.Internal, err.Error())
	}
	return strings.Contains(string(mounts), " "+path+" "), nil
}

// loop is the loop device of an image, or "" if it has none.
func loop(image string) (string, error) {
	devices, err := command("losetup", "--associated", image, "--noheadings", "--output", "NAME")
	if err != nil || devices == "" {
		return "", err
	}
	return strings.Fields(devices)[0], nil
}

// sized is the size to give a volume: whole MiB, not below what XFS takes.
func sized(wanted *csi.CapacityRange) int64 {
	const mib = int64(1 << 20)
	return (max(wanted.GetRequiredBytes(), smallest) + mib - 1) / mib * mib
}

// GetPluginInfo names the driver.
func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

// Probe says that the driver serves.
func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// GetPluginCapabilities says that volumes are made and grow online.
func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE,
		}}},
	}}, nil
}

// ControllerGetCapabilities lists what the controller does.
func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	} {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}},
		})
	}
	return response, nil
}

// ValidateVolumeCapabilities confirms what is asked.
func (d *driver) ValidateVolumeCapabilities(_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: request.VolumeCapabilities,
	}}, nil
}

// CreateVolume makes the image of a volume. The rename makes it whole or absent.
func (d *driver) CreateVolume(_ context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	size, image := sized(request.CapacityRange), d.image(request.Name)
	switch info, err := os.Stat(image); {
	case err == nil:
		size = info.Size()
	case errors.Is(err, os.ErrNotExist):
		if err := format(image, size); err != nil {
			return nil, err
		}
	default:
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: request.Name, CapacityBytes: size}}, nil
}

func format(image string, size int64) error {
	draft := image + ".new"
	file, err := os.Create(draft)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := errors.Join(file.Truncate(size), file.Close()); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if _, err := command("mkfs.xfs", "-q", "-f", "-K", draft); err != nil {
		return err
	}
	if err := os.Rename(draft, image); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// DeleteVolume removes the image of a volume.
func (d *driver) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if err := os.Remove(d.image(request.VolumeId)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerExpandVolume makes the image longer; the node then grows the file system.
func (d *driver) ControllerExpandVolume(_ context.Context, request *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	image := d.image(request.VolumeId)
	info, err := os.Stat(image)
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	size := max(sized(request.CapacityRange), info.Size())
	if err := os.Truncate(image, size); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, nil
}

// NodeGetInfo names the node.
func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

// NodeGetCapabilities lists what the node does.
func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, kind := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	} {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: kind}},
		})
	}
	return response, nil
}

// NodeStageVolume mounts a volume for this node. It is refused while another node has it mounted: all nodes
// are one machine, where nothing else would keep two of them from writing to one volume.
func (d *driver) NodeStageVolume(_ context.Context, request *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if done, err := mounted(request.StagingTargetPath); err != nil || done {
		return &csi.NodeStageVolumeResponse{}, err
	}
	image := d.image(request.VolumeId)
	switch device, err := loop(image); {
	case err != nil:
		return nil, err
	case device != "":
		return nil, status.Errorf(codes.FailedPrecondition, "the volume %s is mounted on another node (%s)", request.VolumeId, device)
	}
	if err := os.MkdirAll(request.StagingTargetPath, 0o755); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	// The loop device frees itself at umount.
	if _, err := command("mount", "-t", "xfs", "-o", "loop,noatime", image, request.StagingTargetPath); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume unmounts a volume from this node.
func (d *driver) NodeUnstageVolume(_ context.Context, request *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return &csi.NodeUnstageVolumeResponse{}, unmount(request.StagingTargetPath)
}

// NodePublishVolume makes a staged volume appear in a pod.
func (d *driver) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if done, err := mounted(request.TargetPath); err != nil || done {
		return &csi.NodePublishVolumeResponse{}, err
	}
	if err := os.MkdirAll(request.TargetPath, 0o755); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if _, err := command("mount", "--bind", request.StagingTargetPath, request.TargetPath); err != nil {
		return nil, err
	}
	if request.Readonly {
		if _, err := command("mount", "-o", "remount,bind,ro", request.TargetPath); err != nil {
			return nil, errors.Join(err, unmount(request.TargetPath))
		}
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume takes a volume away from a pod.
func (d *driver) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if err := unmount(request.TargetPath); err != nil {
		return nil, err
	}
	if err := os.Remove(request.TargetPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func unmount(path string) error {
	for {
		if still, err := mounted(path); err != nil || !still {
			return err
		}
		if _, err := command("umount", path); err != nil {
			return err
		}
	}
}

// NodeExpandVolume grows the mounted file system to the size of its image.
func (d *driver) NodeExpandVolume(_ context.Context, request *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	image := d.image(request.VolumeId)
	device, err := loop(image)
	if err != nil {
		return nil, err
	}
	if device == "" {
		return nil, status.Errorf(codes.FailedPrecondition, "the volume %s is not mounted", request.VolumeId)
	}
	if _, err := command("losetup", "--set-capacity", device); err != nil {
		return nil, err
	}
	if _, err := command("xfs_growfs", "-d", request.VolumePath); err != nil {
		return nil, err
	}
	info, err := os.Stat(image)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: info.Size()}, nil
}

// NodeGetVolumeStats tells how full a volume is.
func (d *driver) NodeGetVolumeStats(_ context.Context, request *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(request.VolumePath, &s); err != nil {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("%s: %v", request.VolumePath, err))
	}
	block := int64(s.Bsize)
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit:      csi.VolumeUsage_BYTES,
			Total:     int64(s.Blocks) * block,
			Available: int64(s.Bavail) * block,
			Used:      int64(s.Blocks-s.Bfree) * block,
		},
		{
			Unit:      csi.VolumeUsage_INODES,
			Total:     int64(s.Files),
			Available: int64(s.Ffree),
			Used:      int64(s.Files - s.Ffree),
		},
	}}, nil
}
