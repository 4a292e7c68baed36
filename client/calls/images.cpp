#include "client/calls/images.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "common/fatbin/image.h"
#include "common/fatbin/select.h"
#include "common/hash.h"

namespace gpupool::client {

Result<std::vector<std::byte>> portable_image(const Session& s, const void* image) {
    Result<fatbin::Image> whole = fatbin::inspect_trusted(image);
    if (!whole) {
        return whole.error();
    }
    const auto all = [&] { return std::vector<std::byte>(whole->bytes.begin(), whole->bytes.end()); };
    if (whole->form == fatbin::Form::cubin || whole->form == fatbin::Form::ptx) {
        return all();
    }
    Result<std::vector<fatbin::Entry>> entries = fatbin::container_entries(whole->bytes);
    if (!entries) {
        return entries.error();
    }
    std::vector<fatbin::Entry> chosen;
    for (const Device& device : s.devices.devices) {
        fatbin::ComputeCapability capability;
        int major = 0, minor = 0;
        device.attributes.get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major);
        device.attributes.get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor);
        capability.major = static_cast<std::uint32_t>(major);
        capability.minor = static_cast<std::uint32_t>(minor);
        const auto preference = s.devices.software || std::getenv("CUDA_FORCE_PTX_JIT") != nullptr
                                    ? fatbin::Preference::ptx_only
                                    : fatbin::Preference::as_driver;
        for (const fatbin::Entry& entry : fatbin::select(*entries, capability, preference)) {
            const bool there = std::any_of(chosen.begin(), chosen.end(), [&](const fatbin::Entry& other) {
                return other.whole.data() == entry.whole.data();
            });
            if (!there) {
                chosen.push_back(entry);
            }
        }
    }
    // Nothing fits: the server's driver is to say so, in its own words.
    return chosen.empty() ? Result<std::vector<std::byte>>(all()) : fatbin::repack(chosen);
}

CUresult send_image(std::span<const std::byte> image, ImageHash& hash) {
    const Fingerprint fingerprint = gpupool::fingerprint(image);
    hash = {fingerprint.low, fingerprint.high};
    unsigned known = 0;
    CUresult result = remote<calls::gpImageOffer>(&hash, std::uint64_t{image.size()}, &known);
    if (result != CUDA_SUCCESS || known != 0) {
        return result;
    }
    constexpr std::size_t kPartBytes = 128u << 10;
    for (std::size_t offset = 0; offset < image.size() && result == CUDA_SUCCESS; offset += kPartBytes) {
        const std::size_t bytes = std::min(kPartBytes, image.size() - offset);
        result = remote<calls::gpImageData>(&hash, std::uint64_t{offset},
                                            reinterpret_cast<const unsigned char*>(image.data() + offset), bytes);
    }
    return result;
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
