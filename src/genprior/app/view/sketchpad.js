// A square canvas for mouse, pen or finger. The strokes are a transparent layer over an image or over black;
// after each stroke the layer is sent as a PNG.
export default {
  template: `
    <div class="sketchpad" :style="backdrop">
      <canvas ref="canvas" :width="size" :height="size" :aria-label="label" role="img"
        @pointerdown="begin" @pointermove="go" @pointerup="end" @pointercancel="end"></canvas>
      <span v-if="empty && hint" class="sketchpad-hint">{{ hint }}</span>
    </div>
  `,
  props: { image: String, ink: String, brush: Number, hint: String, label: String },
  data() {
    return { size: 280, empty: true, last: null };
  },
  computed: {
    backdrop() {
      return this.image ? { backgroundImage: `url(${this.image})` } : {};
    },
  },
  methods: {
    place(event) {
      const box = this.$refs.canvas.getBoundingClientRect();
      const scale = this.size / box.width;
      return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    },
    begin(event) {
      event.preventDefault();
      this.$refs.canvas.setPointerCapture(event.pointerId);
      this.last = this.place(event);
      this.empty = false;
      this.stroke(this.last);
    },
    go(event) {
      if (this.last === null) return;
      const here = this.place(event);
      this.stroke(here);
      this.last = here;
    },
    stroke(to) {
      const pen = this.$refs.canvas.getContext("2d");
      pen.strokeStyle = this.ink;
      pen.lineWidth = this.brush;
      pen.lineCap = pen.lineJoin = "round";
      pen.beginPath();
      pen.moveTo(...this.last);
      pen.lineTo(to[0] + 0.01, to[1]);
      pen.stroke();
    },
    end() {
      if (this.last === null) return;
      this.last = null;
      this.$emit("sketch", this.$refs.canvas.toDataURL("image/png"));
    },
    clear() {
      this.$refs.canvas.getContext("2d").clearRect(0, 0, this.size, this.size);
      this.empty = true;
    },
  },
};
