#include "client/core/images/image_counts.h"

#include <fmt/format.h>

namespace gpupool::client {

ImageCounts& image_counts() noexcept {
    static ImageCounts counts;
    return counts;
}

std::string ImageCounts::summary() const {
    const auto line = [](const char* what, const Counter& counter) {
        return fmt::format("{:<48} {:>10} {:>14} bytes\n", what, counter.count.load(), counter.bytes.load());
    };
    return line("code images: registered by the program", registered_) + line("code images: sent", sent_) +
           line("code images: parts on the wire", on_wire_) + line("code images: found on the server", found_);
}

}  // namespace gpupool::client
