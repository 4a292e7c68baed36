#include "server/worker/session/welcome.h"

#include <algorithm>
#include <vector>

namespace gpupool::worker {
namespace {

constexpr int kFirstAttribute = 1;
constexpr int kLastErrorCode = 999;

struct AttributeValue {
    int id, value;
    CUresult status;
};

template <class Query>
std::vector<AttributeValue> query_all(int last, Query query) {
    std::vector<AttributeValue> values;
    for (int id = kFirstAttribute; id <= last; ++id) {
        int value = 0;
        const CUresult status = query(&value, id);
        values.push_back({id, value, status});
    }
    return values;
}

void store(const std::vector<AttributeValue>& values, capnp::List<schema::Attribute>::Builder list) {
    for (unsigned i = 0; i < values.size(); ++i) {
        list[i].setId(values[i].id);
        list[i].setValue(values[i].value);
        list[i].setStatus(values[i].status);
    }
}

capnp::Data::Reader bytes_of(const CUuuid& uuid) {
    return {reinterpret_cast<const kj::byte*>(uuid.bytes), sizeof uuid.bytes};
}

void describe_device(const driver::Api& api, CUdevice device, schema::Device::Builder out) {
    char name[256] = {}, bus[64] = {};
    driver::call(api.cuDeviceGetName, name, static_cast<int>(sizeof name), device);
    driver::call(api.cuDeviceGetPCIBusId, bus, static_cast<int>(sizeof bus), device);
    CUuuid uuid{}, uuid_v2{};
    driver::call(api.cuDeviceGetUuid, &uuid, device);
    if (driver::call(api.cuDeviceGetUuid_v2, &uuid_v2, device) != CUDA_SUCCESS) {
        uuid_v2 = uuid;
    }
    std::size_t total_bytes = 0;
    driver::call(api.cuDeviceTotalMem_v2, &total_bytes, device);
    out.setName(name);
    out.setPciBusId(bus);
    out.setUuid(bytes_of(uuid));
    out.setUuidV2(bytes_of(uuid_v2));
    out.setTotalMemory(total_bytes);
    const auto attributes = query_all(CU_DEVICE_ATTRIBUTE_MAX - 1, [&](int* value, int id) {
        return driver::call(api.cuDeviceGetAttribute, value, static_cast<CUdevice_attribute>(id), device);
    });
    store(attributes, out.initAttributes(static_cast<unsigned>(attributes.size())));
    // The driver reports the range only with a context; every GPU since Volta has 0..-5.
    out.setLeastStreamPriority(0);
    out.setGreatestStreamPriority(-5);
}

void describe_peers(const driver::Api& api, int count, schema::Welcome::Builder welcome) {
    auto peers = welcome.initPeers(static_cast<unsigned>(count * count - count));
    unsigned index = 0;
    for (int source = 0; source < count; ++source) {
        for (int destination = 0; destination < count; ++destination) {
            if (source == destination) {
                continue;
            }
            auto peer = peers[index++];
            int access = 0;
            driver::call(api.cuDeviceCanAccessPeer, &access, source, destination);
            peer.setSource(source);
            peer.setDestination(destination);
            peer.setCanAccess(access != 0);
            const auto attributes =
                query_all(CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED, [&](int* value, int id) {
                    return driver::call(api.cuDeviceGetP2PAttribute, value, static_cast<CUdevice_P2PAttribute>(id),
                                        source, destination);
                });
            store(attributes, peer.initAttributes(static_cast<unsigned>(attributes.size())));
        }
    }
}

void describe_errors(const driver::Api& api, schema::Welcome::Builder welcome) {
    struct Text {
        int code;
        const char *name, *description;
    };
    std::vector<Text> texts;
    for (int code = 0; code <= kLastErrorCode; ++code) {
        Text text{code, nullptr, nullptr};
        const auto result = static_cast<CUresult>(code);
        if (driver::call(api.cuGetErrorName, result, &text.name) == CUDA_SUCCESS && text.name != nullptr) {
            driver::call(api.cuGetErrorString, result, &text.description);
            texts.push_back(text);
        }
    }
    auto list = welcome.initErrors(static_cast<unsigned>(texts.size()));
    for (unsigned i = 0; i < texts.size(); ++i) {
        list[i].setCode(texts[i].code);
        list[i].setName(texts[i].name);
        list[i].setDescription(texts[i].description == nullptr ? "" : texts[i].description);
    }
}

}  // namespace

Result<Window> reserve_window(const driver::Api& api, capnp::List<schema::AddressWindow>::Reader wanted) {
    constexpr std::uint64_t kMinBytes = 1ull << 30, kMaxBytes = 1ull << 45, kMaxAddress = 1ull << 47;
    for (const auto window : wanted) {
        const std::uint64_t base = window.getBase(), bytes = window.getBytes();
        if (bytes < kMinBytes || bytes > kMaxBytes || base >= kMaxAddress || bytes > kMaxAddress - base) {
            continue;
        }
        CUdeviceptr got = 0;
        if (driver::call(api.cuMemAddressReserve, &got, static_cast<std::size_t>(bytes), std::size_t{0},
                         static_cast<CUdeviceptr>(base), 0ull) != CUDA_SUCCESS) {
            continue;
        }
        if (got == base) {
            return Window{base, bytes};
        }
        driver::call(api.cuMemAddressFree, got, static_cast<std::size_t>(bytes));
    }
    return Error{ErrorCode::unavailable, "none of the client's address ranges is free on the server"};
}

void describe_driver(const driver::Library& library, schema::Welcome::Builder welcome) {
    welcome.setDriverVersion(library.version);
    welcome.setDriverKind(library.kind == driver::Kind::software ? "software" : "nvidia");
    int count = 0;
    driver::call(library.api.cuDeviceGetCount, &count);
    auto devices = welcome.initDevices(static_cast<unsigned>(count));
    for (int device = 0; device < count; ++device) {
        describe_device(library.api, device, devices[static_cast<unsigned>(device)]);
    }
    describe_peers(library.api, count, welcome);
    describe_errors(library.api, welcome);
    CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
    driver::call(library.api.cuModuleGetLoadingMode, &mode);
    welcome.setModuleLoadingMode(mode);
}

}  // namespace gpupool::worker
