// Sends code images to the server: only the parts that its devices need, and each image once.
//
// Ownership: none.
// Threads: any.
// Errors: the driver's; Result if an image cannot be read.
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

// The part of an image that the server needs: the entries that the session's devices can use. If a device needs them,
// the containers that are still to be linked (separate compilation) follow, one after the other.
Result<std::vector<std::byte>> portable_image(const Session& s, const void* image);

// Sends the image to the server. If several threads call this, one sends.
CUresult send_image(std::span<const std::byte> image, const ImageHash& hash);

// Makes a call that names an image by its hash, `call(hash, wanted)`. If the server lacks the image, sends it and
// repeats the call.
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

// Counts an image that the program has passed to a load call, if a summary of calls is wanted.
void count_registered(const void* image);

// Reads a file and appends a NUL (PTX is text). False if the file cannot be read.
bool read_image_file(const char* path, std::vector<char>& content);

// Loads an image on the server and writes the log to the buffers in `options`.
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
