// The members of gpupool's own structs that travel between client and server as their bytes. Both ends compare them
// (protocol/codec/layout.h). The list stands next to the struct:
//
//   struct PullNotice {
//       std::uint64_t transfer, offset, bytes;
//   };
//   GP_MEMBERS(PullNotice, transfer, offset, bytes);
//
// It does not compile if it lacks a member or has another order than the struct, or if the struct has padding.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>

namespace gpupool {

struct Member {
    enum class Kind : char {
        unsigned_integer = 'u',
        signed_integer = 'i',
        floating = 'f',
        handle = 'h',
        driver_struct = 's',  // of cuda.h
        own_struct = '{',     // of gpupool: it has `members`
    };
    std::string_view name;
    std::size_t offset = 0;
    Kind kind = Kind::driver_struct;
    std::size_t element_bytes = 0;
    std::size_t elements = 1;  // of an array
    std::span<const Member> members;
};

// Whether T has a list of members. GP_MEMBERS defines members_of() in the namespace of T.
template <class T>
concept HasMembers = requires { members_of(static_cast<const T*>(nullptr)); };

template <HasMembers T>
inline constexpr auto kMembers = members_of(static_cast<const T*>(nullptr));

namespace detail {

template <class T>
constexpr Member::Kind kind_of() {
    if constexpr (std::is_enum_v<T>) {
        return kind_of<std::underlying_type_t<T>>();
    } else if constexpr (std::is_pointer_v<T>) {
        return Member::Kind::handle;
    } else if constexpr (std::is_floating_point_v<T>) {
        return Member::Kind::floating;
    } else if constexpr (std::is_integral_v<T>) {
        return std::is_signed_v<T> ? Member::Kind::signed_integer : Member::Kind::unsigned_integer;
    } else {
        return HasMembers<T> ? Member::Kind::own_struct : Member::Kind::driver_struct;
    }
}

template <class T>
constexpr Member member(std::string_view name, std::size_t offset) {
    static_assert(std::rank_v<T> <= 1 && std::is_trivially_copyable_v<T>);
    using Element = std::remove_extent_t<T>;
    Member member{name, offset, kind_of<Element>(), sizeof(Element), sizeof(T) / sizeof(Element), {}};
    if constexpr (HasMembers<Element>) {
        member.members = kMembers<Element>;
    }
    return member;
}

}  // namespace detail

// Whether each member begins where the one before it ends, from the first byte of the struct to its last.
constexpr bool cover(std::span<const Member> members, std::size_t struct_bytes) {
    std::size_t end = 0;
    for (const Member& member : members) {
        if (member.offset != end) {
            return false;
        }
        end += member.element_bytes * member.elements;
    }
    return end == struct_bytes;
}

}  // namespace gpupool

// Use it in the namespace of `type`, with a semicolon.
#define GP_MEMBERS(type, ...)                                                                                   \
    constexpr auto members_of(const type*) { return std::array{GP_EXPAND(GP_NEXT_MEMBER(type, __VA_ARGS__))}; } \
    static_assert(::gpupool::cover(::gpupool::kMembers<type>, sizeof(type)),                                    \
                  "list every member of " #type ", in order; name padding as a reserved member")

// A macro does not expand itself. GP_NEXT_MEMBER leaves the rest of the list as another use of itself, which GP_EXPAND
// expands: up to 64 members.
#define GP_NEXT_MEMBER(type, name, ...)                                          \
    ::gpupool::detail::member<decltype(type::name)>(#name, offsetof(type, name)) \
        __VA_OPT__(, GP_REST_OF_MEMBERS GP_NO_ARGUMENTS(type, __VA_ARGS__))
#define GP_REST_OF_MEMBERS() GP_NEXT_MEMBER
#define GP_NO_ARGUMENTS ()
#define GP_EXPAND(...) GP_EXPAND_16(GP_EXPAND_16(GP_EXPAND_16(GP_EXPAND_16(__VA_ARGS__))))
#define GP_EXPAND_16(...) GP_EXPAND_4(GP_EXPAND_4(GP_EXPAND_4(GP_EXPAND_4(__VA_ARGS__))))
#define GP_EXPAND_4(...) GP_EXPAND_1(GP_EXPAND_1(GP_EXPAND_1(GP_EXPAND_1(__VA_ARGS__))))
#define GP_EXPAND_1(...) __VA_ARGS__
