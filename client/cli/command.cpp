#include "client/cli/command.h"

#include <cstdio>

namespace gpupool::cli {

void complain(const std::string& message) {
    std::fprintf(stderr, "gpupool: %s\n", message.c_str());
}

}  // namespace gpupool::cli
