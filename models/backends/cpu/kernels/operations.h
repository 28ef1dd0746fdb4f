// The operations that a program consists of or that Python calls alone, and how each is cut into items for threads to
// share.

// What follows is said to it by the struct of kernels.h that its case names.
enum Kind : int64_t {
    RMS_NORM,
    RMS_NORM_FROM_ONE,
    LAYER_NORM,
    ROTATE,
    WRITE_SLOTS,
    ADD,
    ATTEND,
    FLOAT_LINEAR,
    QUANTISE,
    INT8_LINEAR,
    TAKE_ROWS,
    SPAN_MEAN,
    SURVEY,
    DRAW,
    SCALE
};

template <class Params> const Params& params_of(const void* task) { return *static_cast<const Params*>(task); }

// `workers.share(count, grain, body)` calls body(begin, end) for parts of 0..count, of at least `grain` items each.
template <class Workers> void run_operation(Kind kind, DType dtype, const void* task, Workers& workers) {
    // A kernel over `count` items, of so many numbers each.
    const auto share = [&](auto kernel, const auto& p, int64_t count, int64_t numbers) {
        workers.share(count, items_of(numbers), [&](int64_t begin, int64_t end) {
            if constexpr (std::is_invocable_v<decltype(kernel), DType, decltype(p), int64_t, int64_t>) {
                kernel(dtype, p, begin, end);
            } else {
                kernel(p, begin, end);
            }
        });
    };
    const auto norm = [&](auto kernel, const Norm& p) { share(kernel, p, p.rows, p.parts * p.width); };
    switch (kind) {
        case RMS_NORM: return norm(kernels.rms_norm, params_of<Norm>(task));
        case RMS_NORM_FROM_ONE: return norm(kernels.rms_norm_from_one, params_of<Norm>(task));
        case LAYER_NORM: return norm(kernels.layer_norm, params_of<Norm>(task));
        case ROTATE: {
            const auto& p = params_of<Rotation>(task);
            return share(kernels.rotate, p, p.tokens, p.heads * p.head_dim);
        }
        case WRITE_SLOTS: {
            const auto& p = params_of<SlotWrite>(task);
            return share(write_slots, p, p.tokens, p.width);
        }
        case TAKE_ROWS: {
            const auto& p = params_of<RowChoice>(task);
            return share(take_rows, p, p.rows, p.width);
        }
        case ADD: {
            const auto& p = params_of<Sum>(task);
            return share(kernels.add, p, p.rows, p.width);
        }
        case SCALE: {
            const auto& p = params_of<Scaling>(task);
            return share(kernels.scale, p, p.rows, p.width);
        }
        case ATTEND: {
            const auto& p = params_of<Attention>(task);
            return share(kernels.attend, p, p.num_tiles * p.kv_heads, GRAIN);
        }
        case FLOAT_LINEAR: {
            FloatLinear p = params_of<FloatLinear>(task);
            p.blocks = blocks_of(p.rows, p.width * (dtype == FLOAT32 ? 4 : 2));
            return share(kernels.float_linear, p, p.blocks * panels_of(p.finish.columns), p.width * PANEL);
        }
        case QUANTISE: {
            const auto& p = params_of<Quantise>(task);
            return share(kernels.quantise, p, p.rows, p.width);
        }
        case INT8_LINEAR: {
            Int8Linear p = params_of<Int8Linear>(task);
            p.blocks = blocks_of(p.rows, p.padded);
            return share(kernels.int8_linear, p, p.blocks * panels_of(p.finish.columns), p.padded * PANEL);
        }
        case SPAN_MEAN: {
            const auto& p = params_of<SpanMean>(task);
            return share(kernels.span_mean, p, p.count, p.rows / std::max<int64_t>(1, p.count) * p.width);
        }
        case SURVEY: {
            const auto& p = params_of<Survey>(task);
            return share(kernels.survey, p, p.rows, p.width);
        }
        case DRAW: {
            const auto& p = params_of<Draw>(task);
            return share(kernels.draw, p, p.rows, p.width);
        }
    }
}
