#include "protocol/calls/image_hash.h"

#include <cstring>

#include "common/digest.h"

namespace gpupool {

ImageHash hash_of(std::span<const std::byte> image) {
    const Digest digest = sha256(image);
    ImageHash hash{};
    static_assert(sizeof digest == sizeof hash);
    std::memcpy(&hash, digest.data(), sizeof hash);
    return hash;
}

}  // namespace gpupool
