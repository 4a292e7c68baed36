// The encoding of a call's arguments: the client's writer and the worker's reader, parameter by parameter, next to each
// other.
//
// Body of a command record, for each parameter in order:
//   value      the value, padded to 8 bytes; a handle as its 64-bit identifier
//   address    8 bytes
//   in, inout  8 bytes: 1 or 0 (null); then the object
//   in_array   8 bytes: elements + 1, or 0 (null); then the elements
//   text       8 bytes: length + 1, or 0 (null); then the characters and a NUL
//   out        8 bytes: 1 or 0 (null)
//   out_array  8 bytes: 1 or 0 (null); its capacity is the count parameter's value
//   creates    8 bytes: the minted handle, or 0 (null pointer)
//   absent     nothing
#pragma once

#include <cstring>
#include <vector>

#include "protocol/codec/cursor.h"
#include "protocol/codec/parameter.h"

namespace gpupool::codec {

// ---- client: arguments to bytes

template <class Call, int Index>
std::size_t parameter_bytes(Arguments arguments) {
    using T = ArgumentOf<Call, Index>;
    constexpr Shape kKind = shape<Call, Index>;
    if constexpr (kKind == Shape::absent) {
        return 0;
    } else if constexpr (kKind == Shape::value) {
        return aligned(sizeof(T));
    } else if constexpr (kKind == Shape::in || kKind == Shape::inout) {
        return 8 + (argument<Call, Index>(arguments) == nullptr ? 0 : aligned(sizeof(PointeeOf<T>)));
    } else if constexpr (kKind == Shape::in_array) {
        const std::size_t count = element_count<Call, Index>(arguments);
        return 8 + (argument<Call, Index>(arguments) == nullptr ? 0 : aligned(count * sizeof(PointeeOf<T>)));
    } else if constexpr (kKind == Shape::text) {
        const char* text = argument<Call, Index>(arguments);
        return 8 + (text == nullptr ? 0 : aligned(std::strlen(text) + 1));
    } else {
        return 8;
    }
}

template <class Call, int Index>
void write_parameter(Writer& out, Arguments arguments) {
    using T = ArgumentOf<Call, Index>;
    constexpr Shape kKind = shape<Call, Index>;
    if constexpr (kKind == Shape::absent) {
        return;
    } else {
        const T& value = argument<Call, Index>(arguments);
        if constexpr (kKind == Shape::value) {
            out.value(value);
        } else if constexpr (kKind == Shape::address) {
            out.value(reinterpret_cast<std::uint64_t>(value));
        } else if constexpr (kKind == Shape::in || kKind == Shape::inout) {
            static_assert(StructTraits<PointeeOf<T>>::listed, "list the struct in struct_traits.h");
            out.value(std::uint64_t{value != nullptr});
            if (value != nullptr) {
                out.bytes(value, sizeof(PointeeOf<T>));
            }
        } else if constexpr (kKind == Shape::in_array) {
            const std::size_t count = element_count<Call, Index>(arguments);
            out.value(value == nullptr ? std::uint64_t{0} : std::uint64_t{count + 1});
            if (value != nullptr) {
                out.bytes(value, count * sizeof(PointeeOf<T>));
            }
        } else if constexpr (kKind == Shape::text) {
            const std::size_t length = value == nullptr ? 0 : std::strlen(value);
            out.value(value == nullptr ? std::uint64_t{0} : std::uint64_t{length + 1});
            if (value != nullptr) {
                out.bytes(value, length + 1);
            }
        } else if constexpr (kKind == Shape::creates) {
            out.value(value == nullptr ? std::uint64_t{0} : to_wire(*value));
        } else {
            out.value(std::uint64_t{value != nullptr});
        }
    }
}

namespace detail {
template <class Call, int... Index>
std::size_t command_bytes(Arguments arguments, std::integer_sequence<int, Index...>) {
    (void)arguments;
    return (parameter_bytes<Call, Index>(arguments) + ... + std::size_t{0});
}
template <class Call, int... Index>
void write_command(Writer& out, Arguments arguments, std::integer_sequence<int, Index...>) {
    (void)out;
    (void)arguments;
    (write_parameter<Call, Index>(out, arguments), ...);
}
}  // namespace detail

// Size of the body that write_command will write.
template <class Call>
std::size_t command_bytes(Arguments arguments) {
    return detail::command_bytes<Call>(arguments, Indices<Call>{});
}
template <class Call>
void write_command(Writer& out, Arguments arguments) {
    detail::write_command<Call>(out, arguments, Indices<Call>{});
}

// ---- worker: bytes to arguments

// One parameter as the driver will receive it, and the object that it points to. Handles are still the client's.
template <class Call, int Index>
struct Slot {
    using T = ArgumentOf<Call, Index>;
    using Pointee = PointeeOf<T>;
    static constexpr Shape kind = shape<Call, Index>;

    struct Nothing {};
    static constexpr bool one =
        kind == Shape::in || kind == Shape::out || kind == Shape::inout || kind == Shape::creates;
    static constexpr bool many = kind == Shape::in_array || kind == Shape::out_array;
    // Byte arrays stay in the command's body. Arrays that may contain handles are copied, because translation
    // overwrites the handles, and the body of a queued command is decoded again later.
    static constexpr bool in_place =
        kind == Shape::in_array &&
        (std::is_same_v<Pointee, char> || std::is_same_v<Pointee, unsigned char> || std::is_same_v<Pointee, std::byte>);
    using Array = std::conditional_t<in_place, std::span<Pointee>, std::vector<Pointee>>;

    T value{};
    std::conditional_t<one, Pointee, std::conditional_t<many, Array, Nothing>> object{};
    std::uint64_t minted = 0;  // creates: the client's handle

    void read(Reader& in) {
        if constexpr (kind == Shape::value) {
            value = in.value<T>();
        } else if constexpr (kind == Shape::address) {
            value = reinterpret_cast<T>(in.value<std::uint64_t>());
        } else if constexpr (kind == Shape::in || kind == Shape::inout) {
            if (in.value<std::uint64_t>() != 0) {
                object = in.value<Pointee>();
                value = &object;
            }
        } else if constexpr (kind == Shape::in_array) {
            read_array(in);
        } else if constexpr (kind == Shape::text) {
            if (const std::uint64_t size = in.value<std::uint64_t>(); size != 0) {
                const auto* text = reinterpret_cast<const char*>(in.take(size));
                if (text == nullptr || text[size - 1] != '\0') {
                    in.fail();
                    return;
                }
                value = text;
            }
        } else if constexpr (kind == Shape::creates) {
            minted = in.value<std::uint64_t>();
            value = minted == 0 ? nullptr : &object;
        } else if constexpr (kind == Shape::out) {
            value = in.value<std::uint64_t>() == 0 ? nullptr : reinterpret_cast<T>(&object);
        } else if constexpr (kind == Shape::out_array) {
            wanted_ = in.value<std::uint64_t>() != 0;
        }
    }

    // Second pass, when all values are known: checks that an array has the size of its count parameter, which the
    // driver trusts, and allocates an array for output.
    void size_array(Reader& in, Arguments arguments) {
        if constexpr (kind == Shape::in_array) {
            if (value != nullptr && object.size() != element_count<Call, Index>(arguments)) {
                in.fail();
            }
        } else if constexpr (kind == Shape::out_array) {
            if (!wanted_) {
                return;
            }
            const std::size_t count = element_count<Call, Index>(arguments);
            if (count > kMaxArrayElements) {
                in.fail();
                return;
            }
            object.resize(count + 1);  // never empty, so that the pointer is not null
            value = reinterpret_cast<T>(object.data());
        }
        (void)in;
        (void)arguments;
    }

  private:
    void read_array(Reader& in)
        requires(kind == Shape::in_array)
    {
        std::uint64_t size = in.value<std::uint64_t>();
        if (size == 0) {
            return;
        }
        --size;
        if (size > kMaxArrayElements || size * sizeof(Pointee) > in.left()) {
            in.fail();
            return;
        }
        std::byte* const from = in.take(size * sizeof(Pointee));
        if constexpr (in_place) {
            object = {reinterpret_cast<Pointee*>(from), from == nullptr ? 0 : size};
        } else {
            object.resize(size);
            if (from != nullptr && size != 0) {
                std::memcpy(static_cast<void*>(object.data()), from, size * sizeof(Pointee));
            }
        }
        static Pointee none{};
        value = reinterpret_cast<T>(size == 0 ? &none : object.data());
    }
    bool wanted_ = false;
};

namespace detail {
template <class Call, class Sequence>
struct SlotsOf;
template <class Call, int... Index>
struct SlotsOf<Call, std::integer_sequence<int, Index...>> : Slot<Call, Index>... {
    const void* addresses[sizeof...(Index) + 1] = {
        static_cast<const void*>(&static_cast<Slot<Call, Index>*>(this)->value)..., nullptr};
    SlotsOf() = default;
    SlotsOf(const SlotsOf&) = delete;
    SlotsOf& operator=(const SlotsOf&) = delete;

    bool read(std::span<std::byte> body) {
        Reader in(body);
        (static_cast<Slot<Call, Index>*>(this)->read(in), ...);
        if (in.ok()) {
            (static_cast<Slot<Call, Index>*>(this)->size_array(in, addresses), ...);
        }
        return in.ok();
    }
    // The slot of a parameter, by its name in the table: slots.at<Call::stream>().
    template <int Which>
    Slot<Call, Which>& at() {
        return *this;
    }
    template <class Visit>
    void each(Visit&& visit) {
        (visit(*static_cast<Slot<Call, Index>*>(this)), ...);
    }
    template <class Function>
    auto apply(Function&& function) {
        return function(static_cast<Slot<Call, Index>*>(this)->value...);
    }
};
}  // namespace detail

// All parameters of a call, decoded from a command's body. `read` returns false if the bytes are not a valid encoding.
template <class Call>
struct Slots : detail::SlotsOf<Call, Indices<Call>> {};

}  // namespace gpupool::codec
