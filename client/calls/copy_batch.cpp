#include "client/calls/copy_batch.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "client/calls/copy_shapes.h"
#include "client/calls/handlers.h"
#include "protocol/codec/struct_traits.h"

namespace gpupool::client::entry {

bool is_valid_access(CUmemcpySrcAccessOrder order, unsigned flags) {
    const int number = codec::number_of(order);
    return number >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && number <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY &&
           (flags & ~static_cast<unsigned>(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)) == 0;
}

CUresult begin_batch(Session*& s, CUstream stream) {
    CUresult result = begin_copy(s);
    if (result == CUDA_ERROR_INVALID_CONTEXT) {
        result = CUDA_ERROR_INVALID_VALUE;  // as the driver
    }
    const bool legacy = stream == CU_STREAM_LEGACY || (stream == nullptr && !this_thread().per_thread_default);
    return result == CUDA_SUCCESS && legacy ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult check_batch_stream(const Session& s, CUstream stream) {
    StreamInfo info;
    if (const CUresult result = find_stream(stream, info); result != CUDA_SUCCESS) {
        return result;
    }
    const auto capture = s.captures.find(stream_key(stream));
    if (!capture) {
        return CUDA_SUCCESS;
    }
    return capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                            : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;  // the capture stays valid
}

CUresult CopyBatch::add(CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUmemcpySrcAccessOrder order) {
    if (bytes == 0 || !may_copy(s_, dst, src, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Place to = place_of(s_, dst, Side::any), from = place_of(s_, src, Side::any);
    const bool from_hosts = is_hosts(s_, from, src), during = order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    const CUdeviceptr program_src = from_hosts ? s_.host_mirrors.program_address(src) : src;
    if (from_hosts && is_hosts(s_, to, dst)) {
        on_host_.push_back({s_.host_mirrors.program_address(dst), program_src, bytes, order});
        is_awaited_ = is_awaited_ || during;
        return CUDA_SUCCESS;
    }
    const Route route = route_of(to, from, false);
    if (!route.from_device || (from_hosts && during)) {
        to_device_.push_back({dst, program_src, bytes, order});
        return CUDA_SUCCESS;
    }
    is_awaited_ = is_awaited_ || during;
    if (!route.to_device) {
        from_device_.push_back({dst, src, bytes, order});
    } else {
        (route.to_ask ? to_ask_ : on_device_).push_back({dst, src, bytes});
    }
    return CUDA_SUCCESS;
}

// Host-to-host copies are sent last: while one is pending, the client must assume that it writes any source, and later
// copies would wait for it.
CUresult CopyBatch::send() {
    for (const auto part : {&CopyBatch::send_on_device, &CopyBatch::send_to_device, &CopyBatch::send_from_device,
                            &CopyBatch::send_on_host}) {
        if (const CUresult result = (this->*part)(); result != CUDA_SUCCESS) {
            return result;
        }
    }
    return is_awaited_ ? synchronize_stream(stream_) : CUDA_SUCCESS;
}

CUresult CopyBatch::send_on_device() {
    for (const CopyRange& copy : on_device_) {
        give_to_gpu(s_, copy.destination);
        give_to_gpu(s_, copy.source);
    }
    CUresult result = CUDA_SUCCESS;
    for (std::size_t i = 0; i < on_device_.size() && result == CUDA_SUCCESS; i += codec::kMaxBatchedCopies) {
        const std::size_t count = std::min(on_device_.size() - i, codec::kMaxBatchedCopies);
        result = remote<calls::gpCopyBatch>(on_device_.data() + i, count, stream_);
    }
    const WaitForReplies until_known;
    for (std::size_t i = 0; i < to_ask_.size() && result == CUDA_SUCCESS; ++i) {
        result =
            remote<calls::cuMemcpyDtoDAsync_v2>(to_ask_[i].destination, to_ask_[i].source, to_ask_[i].bytes, stream_);
    }
    return result;
}

// Copies whose source is read now are sent first, because a copy that is read late holds back everything behind it in
// the stream. If earlier work may write a source that is not pinned, the call waits for that work, as the driver does.
CUresult CopyBatch::send_to_device() {
    std::vector<const HostCopy*> late;
    for (const HostCopy& copy : to_device_) {
        const auto* const source = reinterpret_cast<const void*>(copy.src);
        const bool in_order = copy.order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        const bool may_be_late = copy.order != CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL && is_pinned(s_, source);
        const bool written =
            in_order && (is_written_before(s_, source, copy.bytes) || s_.transfers.writes_into(source, copy.bytes));
        if (written && may_be_late) {
            late.push_back(&copy);
            continue;
        }
        CUresult result = written ? synchronize_stream(stream_) : CUDA_SUCCESS;
        if (result == CUDA_SUCCESS) {
            result = to_device(s_, copy.dst, source, copy.bytes, stream_, {may_be_late, false});
        }
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return late.empty() ? CUDA_SUCCESS : send_late(late);
}

// Earlier work may still write these sources. The stream waits for that work once, for all of them.
CUresult CopyBatch::send_late(const std::vector<const HostCopy*>& late) {
    CUresult result = remote<calls::gpStreamCatchUp>(stream_);
    for (std::size_t i = 0; i < late.size() && result == CUDA_SUCCESS; ++i) {
        result = to_device(s_, late[i]->dst, reinterpret_cast<const void*>(late[i]->src), late[i]->bytes, stream_,
                           {true, true});
    }
    return result;
}

// Unlike cuMemcpyAsync, the call does not wait for a destination that is not pinned.
CUresult CopyBatch::send_from_device() {
    CUresult result = CUDA_SUCCESS;
    for (std::size_t i = 0; i < from_device_.size() && result == CUDA_SUCCESS; ++i) {
        result = from_device(s_, reinterpret_cast<void*>(from_device_[i].dst), from_device_[i].src,
                             from_device_[i].bytes, stream_, false);
    }
    return result;
}

// The client makes them, when the stream has reached them.
CUresult CopyBatch::send_on_host() {
    if (on_host_.empty()) {
        return CUDA_SUCCESS;
    }
    const std::uint64_t ticket = s_.host_functions.submit([copies = std::move(on_host_)](CUresult status) {
        for (const HostCopy& copy : copies) {
            if (status == CUDA_SUCCESS) {
                std::memmove(reinterpret_cast<void*>(copy.dst), reinterpret_cast<const void*>(copy.src), copy.bytes);
            }
        }
    });
    const CUresult result = remote<calls::gpHostFunction>(ticket, stream_);
    if (result != CUDA_SUCCESS) {
        s_.host_functions.cancel(ticket);
    }
    return result;
}

namespace {

// Checked as the driver does. A hint changes nothing here.
bool is_valid_hint(const Session& s, const CUmemLocation& hint) {
    const int type = codec::number_of(hint.type);
    return type == CU_MEM_LOCATION_TYPE_DEVICE
               ? s.devices.valid(hint.id)
               : type >= CU_MEM_LOCATION_TYPE_INVALID && type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

// The attributes of the copies, each for those from its index on.
struct Attributes {
    std::span<const CUmemcpyAttributes> values;
    std::span<const std::size_t> first;

    [[nodiscard]] bool fit(const Session& s, std::size_t count) const {
        if (values.empty() || values.size() > count || first.front() != 0) {
            return false;
        }
        for (std::size_t i = 0; i < values.size(); ++i) {
            const CUmemcpyAttributes& each = values[i];
            if (first[i] >= count || (i != 0 && first[i] <= first[i - 1]) ||
                !is_valid_access(each.srcAccessOrder, each.flags) || !is_valid_hint(s, each.srcLocHint) ||
                !is_valid_hint(s, each.dstLocHint)) {
                return false;
            }
        }
        return true;
    }
};

// Makes the copies up to the one that fails. `failed` is set to the index of the copy that the driver would refuse.
CUresult copy_batch(const CUdeviceptr* dsts, const CUdeviceptr* srcs, const std::size_t* sizes, std::size_t count,
                    const CUmemcpyAttributes* attrs, const std::size_t* attrs_indexes, std::size_t attr_count,
                    std::size_t& failed, CUstream stream) {
    failed = kNoCopy;
    Session* s = nullptr;
    if (const CUresult result = begin_batch(s, stream); result != CUDA_SUCCESS) {
        return result;
    }
    if (dsts == nullptr || srcs == nullptr || sizes == nullptr || attrs == nullptr || attrs_indexes == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Attributes attributes{{attrs, attr_count}, {attrs_indexes, attr_count}};
    if (!attributes.fit(*s, count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = check_batch_stream(*s, stream); result != CUDA_SUCCESS) {
        return result;
    }
    CopyBatch batch(*s, stream);
    CUresult refused = CUDA_SUCCESS;
    for (std::size_t i = 0, attribute = 0; i < count; ++i) {
        attribute += attribute + 1 < attr_count && attributes.first[attribute + 1] == i ? 1 : 0;
        refused = batch.add(dsts[i], srcs[i], sizes[i], attributes.values[attribute].srcAccessOrder);
        if (refused != CUDA_SUCCESS) {
            failed = i;
            break;
        }
    }
    const CUresult result = batch.send();
    return refused != CUDA_SUCCESS ? refused : result;
}

}  // namespace

CUresult cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, std::size_t* sizes, std::size_t count,
                            CUmemcpyAttributes* attrs, std::size_t* attrsIdxs, std::size_t numAttrs,
                            std::size_t* failIdx, CUstream hStream) {
    if (hStream == nullptr && !this_thread().per_thread_default) {
        return CUDA_ERROR_INVALID_VALUE;  // leaves `failIdx` as it is
    }
    std::size_t failed = kNoCopy;
    const CUresult result = copy_batch(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failed, hStream);
    if (failIdx != nullptr) {
        *failIdx = failed;
    }
    return result;
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, std::size_t* sizes, std::size_t count,
                               CUmemcpyAttributes* attrs, std::size_t* attrsIdxs, std::size_t numAttrs,
                               CUstream hStream) {
    std::size_t failed = kNoCopy;
    // The driver refuses 0 even where it means the thread's default stream.
    return hStream == nullptr ? CUDA_ERROR_INVALID_VALUE
                              : copy_batch(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failed, hStream);
}

}  // namespace gpupool::client::entry
