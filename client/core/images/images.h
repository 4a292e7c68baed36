// Code images: what of one travels, and that it travels once.
//
// Threads: any. Errors: the driver's; Result where an image cannot be read.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "client/core/dispatch/remote.h"
#include "client/core/images/image_counts.h"
#include "client/core/images/jit_options.h"
#include "common/result.h"
#include "protocol/calls/image_hash.h"

namespace gpupool::client {

// What has to travel of an image: the entries that the session's devices can use. Behind it follow, one after the
// other, the containers that are yet to be linked (separate compilation), where a device needs them.
Result<std::vector<std::byte>> portable_image(const Session& s, const void* image);

// The image is on the server afterwards. By several threads at once it is sent once.
CUresult send_image(std::span<const std::byte> image, const ImageHash& hash);

// Makes a call that names an image, `call(hash, wanted)`, and where the server has not got the image sends it and makes
// the call again.
template <class MakeCall>
CUresult call_with_image(std::span<const std::byte> image, MakeCall call) {
    const ImageHash hash = hash_of(image);
    unsigned wanted = 0;
    CUresult result = call(&hash, &wanted);
    if (result != CUDA_SUCCESS || wanted == 0) {
        if (result == CUDA_SUCCESS) {
            image_counts().add_found(image.size());
        }
        return result;
    }
    result = send_image(image, hash);
    if (result == CUDA_SUCCESS) {
        result = call(&hash, &wanted);
    }
    return result == CUDA_SUCCESS && wanted != 0 ? CUDA_ERROR_INVALID_IMAGE : result;
}

// Notes for the summary what the program has given to a load call, where a summary is wanted.
void count_registered(const void* image);

// A file's content and a NUL behind it (PTX is text); false when it cannot be read.
bool read_image_file(const char* path, std::vector<char>& content);

// Loads it there; the log goes where `options` say.
template <class Call, class Handle>
CUresult load_image(Handle* handle, std::span<const std::byte> image, const JitOptions& options) {
    std::vector<char> log(options.log_bytes() + 1);
    const CUresult result = call_with_image(image, [&](const ImageHash* hash, unsigned* wanted) {
        return remote<Call>(handle, hash, wanted, options.names.data(), options.values.data(),
                            static_cast<unsigned>(options.names.size()), log.data(), options.log_bytes());
    });
    give_log(options, log);
    return result;
}

}  // namespace gpupool::client
