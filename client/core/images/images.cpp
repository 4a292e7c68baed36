#include "client/core/images/images.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "client/core/tracing/trace.h"
#include "common/compression.h"
#include "common/environment.h"
#include "common/fatbin/image.h"
#include "common/fatbin/select.h"
#include "common/mutex.h"

namespace gpupool::client {

namespace {

fatbin::ComputeCapability capability_of(const Device& device) {
    int major = 0, minor = 0;
    device.attributes.get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major);
    device.attributes.get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor);
    return {static_cast<std::uint32_t>(major), static_cast<std::uint32_t>(minor)};
}

struct Chosen {
    std::vector<fatbin::Entry> entries;
    bool every_device_has_one = true;
};

Result<Chosen> choose(const Session& s, fatbin::Bytes container, fatbin::Preference preference) {
    Result<std::vector<fatbin::Entry>> entries = fatbin::container_entries(container);
    if (!entries) {
        return entries.error();
    }
    Chosen chosen;
    for (const Device& device : s.devices.devices) {
        const std::vector<fatbin::Entry> fitting = fatbin::select(*entries, capability_of(device), preference);
        chosen.every_device_has_one = chosen.every_device_has_one && !fitting.empty();
        for (const fatbin::Entry& entry : fitting) {
            const bool there =
                std::any_of(chosen.entries.begin(), chosen.entries.end(),
                            [&](const fatbin::Entry& other) { return other.whole.data() == entry.whole.data(); });
            if (!there) {
                chosen.entries.push_back(entry);
            }
        }
    }
    return chosen;
}

}  // namespace

Result<std::vector<std::byte>> portable_image(const Session& s, const void* image) {
    Result<fatbin::Image> whole = fatbin::inspect_trusted(image);
    if (!whole) {
        return whole.error();
    }
    const auto all = [](fatbin::Bytes bytes) { return std::vector<std::byte>(bytes.begin(), bytes.end()); };
    if (whole->form == fatbin::Form::cubin || whole->form == fatbin::Form::ptx) {
        return all(whole->bytes);
    }
    const auto preference = s.devices.software || environment::cuda_switch("CUDA_FORCE_PTX_JIT")
                                ? fatbin::Preference::ptx_only
                                : fatbin::Preference::as_driver;
    Result<Chosen> chosen = choose(s, whole->bytes, preference);
    if (!chosen) {
        return chosen.error();
    }
    // Nothing fits: send everything, so that the server's driver reports its own error.
    Result<std::vector<std::byte>> result =
        chosen->entries.empty() && whole->prelinked.empty() ? all(whole->bytes) : fatbin::repack(chosen->entries);
    if (!result || chosen->every_device_has_one) {
        return result;
    }
    // Containers that the driver links when it loads them.
    for (const fatbin::Bytes part : whole->prelinked) {
        Result<Chosen> of_part = choose(s, part, preference);
        if (of_part && of_part->entries.empty()) {
            of_part = choose(s, part, fatbin::Preference::as_driver);
        }
        if (!of_part) {
            return of_part.error();
        }
        Result<std::vector<std::byte>> packed = of_part->entries.empty() ? all(part) : fatbin::repack(of_part->entries);
        if (!packed) {
            return packed.error();
        }
        result->insert(result->end(), packed->begin(), packed->end());
    }
    return result;
}

namespace {

constexpr std::size_t kImagePartBytes = 128u << 10;

// More than one part has not left this machine yet, so there is time to compress the next one. If the line keeps up, as
// within a host, compression would only cost time.
bool is_line_behind(Session& s) {
    s.flush();  // unsent data in the channel's own buffer says nothing about the line
    return s.connection().unsent_bytes() > kImagePartBytes;
}

CUresult send_part(const ImageHash& hash, std::size_t offset, std::size_t unpacked_bytes,
                   std::span<const std::byte> data) {
    image_counts().add_on_wire(data.size());
    return remote<calls::gpImageData>(&hash, std::uint64_t{offset}, std::uint64_t{unpacked_bytes},
                                      reinterpret_cast<const unsigned char*>(data.data()), data.size());
}

}  // namespace

CUresult send_image(std::span<const std::byte> image, const ImageHash& hash) {
    static auto& mutex = *new Mutex;
    static auto& sent = *new std::set<ImageHash>;
    const Lock lock(mutex);
    if (sent.contains(hash)) {
        return CUDA_SUCCESS;  // another thread has sent it since the server answered
    }
    CUresult result = remote<calls::gpImageOffer>(&hash, std::uint64_t{image.size()});
    bool compresses = true;  // until a part does not compress
    for (std::size_t offset = 0; offset < image.size() && result == CUDA_SUCCESS; offset += kImagePartBytes) {
        const auto part = image.subspan(offset, std::min(kImagePartBytes, image.size() - offset));
        std::optional<std::vector<std::byte>> packed;
        if (compresses && is_line_behind(this_session())) {
            packed = compress(part);
            compresses = packed.has_value();
        }
        result = packed ? send_part(hash, offset, part.size(), *packed) : send_part(hash, offset, 0, part);
    }
    if (result == CUDA_SUCCESS) {
        sent.insert(hash);
        image_counts().add_sent(image.size());
    }
    return result;
}

void count_registered(const void* image) {
    if (!trace::enabled.load(std::memory_order_relaxed)) {
        return;  // even reading the headers of a library's images would load them from disk
    }
    if (const Result<fatbin::Image> whole = fatbin::inspect_trusted(image)) {
        std::size_t bytes = whole->bytes.size();
        for (const fatbin::Bytes part : whole->prelinked) {
            bytes += part.size();
        }
        image_counts().add_registered(bytes);
    }
}

bool read_image_file(const char* path, std::vector<char>& content) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return false;
    }
    content.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    content.push_back('\0');  // PTX is text
    return true;
}

}  // namespace gpupool::client
