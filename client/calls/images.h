// Code images: what of one travels, and that it travels once.
//
// Threads: any. Errors: the driver's; Result where an image cannot be read.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "client/calls/jit_options.h"
#include "client/core/remote.h"
#include "common/result.h"

namespace gpupool::client {

// What has to travel of an image: the entries that the session's devices can use. Behind it follow, one after the
// other, the containers that are yet to be linked (separate compilation), where a device needs them.
Result<std::vector<std::byte>> portable_image(const Session& s, const void* image);

// The image is on the server afterwards, under `hash`.
CUresult send_image(std::span<const std::byte> image, ImageHash& hash);

// A file's content and a NUL behind it (PTX is text); false when it cannot be read.
bool read_image_file(const char* path, std::vector<char>& content);

// Loads it there; the log goes where `options` say.
template <class Call, class Handle>
CUresult load_image(Handle* handle, std::span<const std::byte> image, const JitOptions& options) {
    ImageHash hash{};
    CUresult result = send_image(image, hash);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    std::vector<char> log(options.log_bytes() + 1);
    result = remote<Call>(handle, &hash, options.names.data(), options.values.data(),
                          static_cast<unsigned>(options.names.size()), log.data(), options.log_bytes());
    give_log(options, log);
    return result;
}

}  // namespace gpupool::client
