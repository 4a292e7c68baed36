// The devices as the server described them in its Welcome. Immutable afterwards.
//
// Ownership: values.
// Threads: any, because nothing changes after the handshake.
// Errors: CUresult of an attribute as the driver returned it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "protocol/calls/cuda_api.h"
#include "protocol/schema/session.capnp.h"

namespace gpupool::client {

struct AttributeTable {
    struct Entry {
        int value = 0;
        CUresult status = CUDA_ERROR_INVALID_VALUE;
    };
    std::vector<Entry> entries;  // by attribute id
    CUresult get(int id, int* value) const;
};

struct Device {
    std::string name, pci_bus_id;
    CUuuid uuid{}, uuid_v2{};
    std::uint64_t total_bytes = 0;
    AttributeTable attributes;
    int least_priority = 0, greatest_priority = 0;
};

struct Peer {
    bool can_access = false;
    AttributeTable attributes;
};

struct DeviceSnapshot {
    int driver_version = 0;
    CUmoduleLoadingMode loading_mode = CU_MODULE_LAZY_LOADING;
    bool software = false;
    std::vector<Device> devices;
    std::vector<Peer> peers;  // source * count + destination

    [[nodiscard]] bool valid(CUdevice device) const {
        return device >= 0 && static_cast<std::size_t>(device) < devices.size();
    }
    [[nodiscard]] const Peer& peer(CUdevice source, CUdevice destination) const {
        return peers[static_cast<std::size_t>(source) * devices.size() + static_cast<std::size_t>(destination)];
    }
};

DeviceSnapshot read_snapshot(schema::Welcome::Reader welcome);

}  // namespace gpupool::client
