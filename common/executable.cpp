#include "common/executable.h"

#include <limits.h>
#include <unistd.h>

namespace gpupool {

std::string executable_directory() {
    char path[PATH_MAX];
    const auto length = ::readlink("/proc/self/exe", path, sizeof(path));
    if (length <= 0 || length >= static_cast<ssize_t>(sizeof(path))) {
        return ".";
    }
    const std::string whole(path, static_cast<std::size_t>(length));
    return whole.substr(0, whole.rfind('/'));
}

}  // namespace gpupool
