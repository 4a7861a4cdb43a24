// A device plugin that offers GPUs which do not exist.
//
// The kubelet and the scheduler treat them as real: whole devices, distinct ids, health. A container
// that asks for nvidia.com/gpu finds its ids in NVIDIA_VISIBLE_DEVICES, as with NVIDIA's own plugin.
// Ids listed in the file -unhealthy (separated by white space) are reported unhealthy while they stand there.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource   = "nvidia.com/gpu"
	socketName = "fakegpu.sock"
	// A device that turns unhealthy is seen within this time; the kubelet then needs its own status period.
	pollPeriod = 200 * time.Millisecond
)

type server struct {
	plugin.UnimplementedDevicePluginServer
	node      string
	count     int
	unhealthy string
}

func (s *server) devices() []*plugin.Device {
	content, _ := os.ReadFile(s.unhealthy) // absent means: all healthy
	bad := strings.Fields(string(content))
	devices := make([]*plugin.Device, s.count)
	for i := range devices {
		id := fmt.Sprintf("GPU-%s-%d", s.node, i)
		health := plugin.Healthy
		if slices.Contains(bad, id) {
			health = plugin.Unhealthy
		}
		devices[i] = &plugin.Device{ID: id, Health: health}
	}
	return devices
}

func (s *server) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

func (s *server) ListAndWatch(_ *plugin.Empty, stream plugin.DevicePlugin_ListAndWatchServer) error {
	sent := ""
	for {
		devices := s.devices()
		if now := fmt.Sprint(devices); now != sent {
			if err := stream.Send(&plugin.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			sent = now
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(pollPeriod):
		}
	}
}

func (s *server) Allocate(_ context.Context, request *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	response := &plugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &plugin.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return response, nil
}

// serve registers once and returns when the kubelet has removed our socket, as it does when it restarts.
func (s *server) serve(directory string) error {
	socket := filepath.Join(directory, socketName)
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	host := grpc.NewServer()
	plugin.RegisterDevicePluginServer(host, s)
	go func() { _ = host.Serve(listener) }()
	defer host.Stop()
	if err := s.register(filepath.Join(directory, "kubelet.sock")); err != nil {
		return err
	}
	log.Printf("registered %d devices of %s", s.count, resource)
	for exists(socket) {
		time.Sleep(pollPeriod)
	}
	return nil
}

func (s *server) register(kubelet string) error {
	// Dialling before the kubelet listens would cost a gRPC back-off of up to 20 s.
	for !exists(kubelet) {
		time.Sleep(pollPeriod / 4)
	}
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err = plugin.NewRegistrationClient(connection).Register(ctx, &plugin.RegisterRequest{
		Version: plugin.Version, Endpoint: socketName, ResourceName: resource,
	})
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func main() {
	s := &server{}
	directory := flag.String("directory", "/var/lib/kubelet/device-plugins", "where the kubelet listens")
	flag.StringVar(&s.node, "node", "", "name of the node, part of every device id")
	flag.IntVar(&s.count, "count", 8, "number of devices")
	flag.StringVar(&s.unhealthy, "unhealthy", "", "file of the ids to report unhealthy")
	flag.Parse()
	for {
		if err := s.serve(*directory); err != nil {
			log.Print(err)
			time.Sleep(pollPeriod)
		}
	}
}
