// Code images as the load calls receive them: what they are, how long they are, which entries they hold.
//
// cuModuleLoadData and its relatives get a bare pointer: `inspect_trusted` follows it, since the memory is the
// application's own and the driver would do the same. Bytes that came from a peer go through `inspect`, which never
// reads outside of the span and never follows a pointer found in it.
//
// Ownership: everything returned points into the caller's memory. Threads: any; nothing is kept. Errors: Result, with
// the offset at which a container stopped making sense.
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
    ptx,        // text; whatever is none of the others, as the driver sees it
};

const char* to_string(Form form) noexcept;

struct Image {
    Form form = Form::ptx;
    // The container (also a wrapper's), the cubin, or the text with its terminating NUL: exactly what must travel.
    Bytes bytes;
    // Relocatable code: the containers that were linked into `bytes`, needed when its PTX must be linked for the
    // device.
    std::vector<Bytes> prelinked;
};

// One code object of a container, or a bare cubin or PTX text told as if it were one.
struct Entry {
    Kind kind = Kind::ptx;
    std::uint32_t arch = 0;  // 90 is compute capability 9.0; 0 in a bare image, which says so only inside
    std::uint64_t flags = 0;
    std::uint16_t major = 0;  // of the PTX ISA for PTX, of the cubin format for cubins
    std::uint16_t minor = 0;
    std::uint64_t unpacked_bytes = 0;  // what `unpack` will give (padding of stored entries included)
    bool compressed = false;
    Bytes stored;  // the payload as it lies there, without padding if compressed
    Bytes whole;   // header, options and padded payload; empty in a bare image
};

// The application's memory: no length is known. A PTX text is read up to its NUL, a cubin's length comes from its
// headers.
Result<Image> inspect_trusted(const void* image);

// A peer's bytes: every access is checked. The image may be followed by other bytes; `Image::bytes` is its exact
// extent.
Result<Image> inspect(Bytes image);

// A peer's bytes likewise, where the containers that are to be linked may follow the first, one right after the other.
Result<Image> inspect_joined(Bytes image);

// The entries of a container (bounded by the span), in their order.
Result<std::vector<Entry>> container_entries(Bytes container);

// The entries of any form: a container's, or the one that a bare cubin or PTX text is. Prelinked containers are not
// included.
Result<std::vector<Entry>> image_entries(const Image& image);

// The exact length of the cubin that starts here, from its first 64 bytes.
Result<std::uint64_t> cubin_bytes(const std::byte* header);

}  // namespace gpupool::fatbin
