// All readers of a peer's code image, on any bytes: classification, entries, unpacking, selection.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "common/fatbin/select.h"
#include "common/fatbin/unpack.h"

namespace {

using namespace gpupool::fatbin;

// Small, so that a run tests the readers instead of memory allocation.
constexpr std::uint64_t kUnpackLimitBytes = 1u << 20;

void require(bool condition) {
    if (!condition) {
        std::abort();
    }
}

void read_entry(const Entry& entry) {
    auto contents = unpack(entry, kUnpackLimitBytes);
    if (!contents) {
        return;
    }
    require(contents->bytes().size() == entry.unpacked_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const Bytes input(reinterpret_cast<const std::byte*>(data), size);
    auto image = inspect(input);
    if (!image) {
        return 0;
    }
    require(image->bytes.size() <= size);
    if (const auto joined = inspect_joined(input)) {
        std::size_t used = joined->bytes.size();
        for (const Bytes part : joined->prelinked) {
            used += part.size();
        }
        require(used <= size);
    }
    auto entries = image_entries(*image);
    if (!entries) {
        return 0;
    }
    for (const Entry& entry : *entries) {
        read_entry(entry);
    }
    for (ComputeCapability device : {ComputeCapability{7, 5}, {9, 0}, {10, 3}}) {
        const auto chosen = select(*entries, device);
        require(chosen.size() <= entries->size());
        auto packed = repack(chosen);
        if (!packed) {
            continue;
        }
        auto again = container_entries(*packed);
        require(again.ok() && again->size() == chosen.size());
    }
    return 0;
}
