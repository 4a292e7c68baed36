#include "server/worker/images/image_prints.h"

#include <algorithm>
#include <string_view>

#include "common/fatbin/unpack.h"

namespace gpupool::worker {
namespace {

// The symbol that printf() in device code refers to, in cubins and PTX alike.
constexpr std::string_view kPrints = "vprintf";

bool mentions_printing(fatbin::Bytes code) {
    const std::string_view text(reinterpret_cast<const char*>(code.data()), code.size());
    return text.find(kPrints) != std::string_view::npos;
}

bool container_prints(const fatbin::Image& image) {
    const auto entries = fatbin::image_entries(image);
    return !entries || std::any_of(entries->begin(), entries->end(), [](const fatbin::Entry& entry) {
        const auto code = fatbin::unpack(entry);
        return !code || entry.kind == fatbin::Kind::lto_ir || mentions_printing(code->bytes());
    });
}

}  // namespace

bool image_prints(fatbin::Bytes image) {
    const auto joined = fatbin::inspect_joined(image);
    if (!joined || container_prints(*joined)) {
        return true;
    }
    return std::any_of(joined->prelinked.begin(), joined->prelinked.end(), [](fatbin::Bytes part) {
        const auto linked = fatbin::inspect(part);
        return !linked || container_prints(*linked);
    });
}

}  // namespace gpupool::worker
