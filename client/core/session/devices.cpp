#include "client/core/session/devices.h"

#include <algorithm>

#include "client/error_text.h"

namespace gpupool::client {
namespace {

constexpr int kMaxAttribute = 4096;

AttributeTable read_attributes(capnp::List<schema::Attribute>::Reader list) {
    AttributeTable table;
    for (const auto attribute : list) {
        const int id = attribute.getId();
        if (id < 0 || id > kMaxAttribute) {
            continue;
        }
        if (table.entries.size() <= static_cast<std::size_t>(id)) {
            table.entries.resize(static_cast<std::size_t>(id) + 1);
        }
        table.entries[static_cast<std::size_t>(id)] = {attribute.getValue(),
                                                       error_text::from_peer(attribute.getStatus())};
    }
    return table;
}

CUuuid read_uuid(capnp::Data::Reader data) {
    CUuuid uuid{};
    std::copy_n(data.begin(), std::min(sizeof uuid.bytes, data.size()), uuid.bytes);
    return uuid;
}

}  // namespace

CUresult AttributeTable::get(int id, int* value) const {
    if (id < 0 || static_cast<std::size_t>(id) >= entries.size()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Entry& entry = entries[static_cast<std::size_t>(id)];
    if (entry.status == CUDA_SUCCESS) {
        *value = entry.value;
    }
    return entry.status;
}

DeviceSnapshot read_snapshot(schema::Welcome::Reader welcome) {
    DeviceSnapshot snapshot;
    snapshot.driver_version = welcome.getDriverVersion();
    snapshot.loading_mode =
        welcome.getModuleLoadingMode() == CU_MODULE_EAGER_LOADING ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    snapshot.software = welcome.getDriverKind() == "software";
    for (const auto device : welcome.getDevices()) {
        Device& out = snapshot.devices.emplace_back();
        out.name = device.getName();
        out.pci_bus_id = device.getPciBusId();
        out.uuid = read_uuid(device.getUuid());
        out.uuid_v2 = read_uuid(device.getUuidV2());
        out.total_bytes = device.getTotalMemory();
        out.attributes = read_attributes(device.getAttributes());
        out.least_priority = device.getLeastStreamPriority();
        out.greatest_priority = device.getGreatestStreamPriority();
    }
    const std::size_t count = snapshot.devices.size();
    snapshot.peers.resize(count * count);
    for (const auto peer : welcome.getPeers()) {
        const int source = peer.getSource(), destination = peer.getDestination();
        if (snapshot.valid(source) && snapshot.valid(destination)) {
            Peer& out =
                snapshot.peers[static_cast<std::size_t>(source) * count + static_cast<std::size_t>(destination)];
            out.can_access = peer.getCanAccess();
            out.attributes = read_attributes(peer.getAttributes());
        }
    }
    return snapshot;
}

}  // namespace gpupool::client
