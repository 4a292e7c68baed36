// Bounds for messages from a peer, and their texts.
//
// Ownership: values. Threads: any. Errors: Result.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/printable.h"
#include "common/result.h"

namespace gpupool::messages {

// A name, a text of a limit, a token; a sentence for people.
inline constexpr std::size_t kMaxTextBytes = 256;
inline constexpr std::size_t kMaxSentenceBytes = 4096;

inline Error too_long(const char* what, std::size_t most_bytes) {
    return Error{ErrorCode::limit_exceeded, std::string("the message cannot be read: ") + what + " has more than " +
                                                std::to_string(most_bytes) + " bytes or entries"};
}

// Copies a text. Bytes that are not printable ASCII become question marks, since a terminal or a log may show it.
inline Status read_text(capnp::Text::Reader text, const char* what, std::string& out,
                        std::size_t most_bytes = kMaxTextBytes) {
    if (text.size() > most_bytes) {
        return too_long(what, most_bytes);
    }
    out = printable(std::string_view(text.cStr(), text.size()), most_bytes);
    return {};
}

// Calls `read` with the root of the message in `payload`, which a peer sent. At most four times its size is read, since
// a hostile message may contain pointer cycles.
template <class Root, class Value, class Read>
Result<Value> read_message(std::span<const std::byte> payload, Read read) {
    if (payload.empty() || payload.size() % sizeof(capnp::word) != 0) {
        return Error{ErrorCode::invalid_input, "the message cannot be read: its size is not a multiple of 8 bytes"};
    }
    // Copied because a message must lie on a word boundary.
    auto words = kj::heapArray<capnp::word>(payload.size() / sizeof(capnp::word));
    std::memcpy(words.begin(), payload.data(), payload.size());
    try {
        capnp::ReaderOptions options;
        options.traversalLimitInWords = 4 * words.size();
        options.nestingLimit = 16;
        capnp::FlatArrayMessageReader reader(words, options);
        return read(reader.template getRoot<Root>());
    } catch (const kj::Exception& exception) {
        return Error{ErrorCode::invalid_input,
                     std::string("the message cannot be read: ") + exception.getDescription().cStr()};
    }
}

inline std::vector<std::byte> payload_of(capnp::MessageBuilder& message) {
    const auto words = capnp::messageToFlatArray(message);
    const auto bytes = words.asBytes();
    std::vector<std::byte> payload(bytes.size());
    std::memcpy(payload.data(), bytes.begin(), bytes.size());
    return payload;
}

}  // namespace gpupool::messages
