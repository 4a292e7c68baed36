// Code images as the load calls receive them: their form, their length and their entries.
//
// cuModuleLoadData and its relatives take a bare pointer: `inspect_trusted` follows it, because the memory is the
// application's own and the driver would do the same. Bytes received from a peer go through `inspect`, which never
// reads outside of the span and never follows a pointer found in it.
//
// Ownership: everything returned points into the caller's memory. Threads: any; nothing is kept. Errors: Result, with
// the offset at which a container is malformed.
#pragma once

#include <vector>

#include "common/fatbin/format.h"
#include "common/result.h"

namespace gpupool::fatbin {

using Bytes = std::span<const std::byte>;

enum class Form {
    wrapper,    // __fatBinC_Wrapper_t; only in the application's memory
    container,  // header and entries
    cubin,      // ELF
    ptx,        // text; as in the driver, everything that has none of the other forms
};

struct Image {
    Form form = Form::ptx;
    // The container (also of a wrapper), the cubin, or the text with its terminating NUL: exactly the bytes to send.
    Bytes bytes;
    // Relocatable code: the containers that were linked into `bytes`. They are needed if its PTX must be linked for the
    // device.
    std::vector<Bytes> prelinked;
};

// One code object of a container; or a bare cubin or PTX text, described as if it were one.
struct Entry {
    Kind kind = Kind::ptx;
    std::uint32_t arch = 0;  // 90 is compute capability 9.0; 0 for a bare image, which states it only inside its code
    std::uint64_t flags = 0;
    std::uint16_t major = 0;  // of the PTX ISA for PTX, of the cubin format for cubins
    std::uint16_t minor = 0;
    std::uint64_t unpacked_bytes = 0;  // size of the result of `unpack` (padding of stored entries included)
    bool compressed = false;
    Bytes stored;  // the payload as stored, without padding if compressed
    Bytes whole;   // header, options and padded payload; empty in a bare image
};

// The error of an image that is not well formed.
Error malformed(std::string message);

// For the application's memory, whose length is unknown. A PTX text is read up to its NUL, a cubin's length is computed
// from its headers.
Result<Image> inspect_trusted(const void* image);

// For bytes from a peer: every access is checked. Other bytes may follow the image; `Image::bytes` is its exact extent.
Result<Image> inspect(Bytes image);

// As `inspect`, but the containers to be linked with the first may follow it without gaps; they become `prelinked`.
Result<Image> inspect_joined(Bytes image);

// The entries of a container (bounded by the span), in their order.
Result<std::vector<Entry>> container_entries(Bytes container);

// The entries of an image of any form; a bare cubin or PTX text counts as one entry. Prelinked containers are not
// included.
Result<std::vector<Entry>> image_entries(const Image& image);

// The exact length of the cubin that starts here, from its first 64 bytes.
Result<std::uint64_t> cubin_bytes(const std::byte* header);

}  // namespace gpupool::fatbin
