// A menu of the versions that were built side by side: `make docs VERSIONS="v0.1.0 v0.2.0"` lists them in
// versions.js, beside the site or one folder above it. A site that was built alone has no such file.
(() => {
	const root = document.documentElement.dataset.content_root;
	const load = (folder, otherwise) => {
		const script = document.createElement("script");
		script.src = `${folder}versions.js`;
		script.onload = () => show(folder, window.torchtapVersions);
		script.onerror = otherwise;
		document.head.append(script);
	};
	const show = (folder, versions) => {
		const here = new URL(root, location.href).href;
		const menu = document.createElement("select");
		menu.className = "versions";
		menu.setAttribute("aria-label", "Version");
		for (const { name, path } of versions) {
			const page = new URL(`${folder}${path}`, location.href).href;
			menu.add(new Option(name, `${page}index.html`, false, page === here));
		}
		menu.onchange = () => location.assign(menu.value);
		document.querySelector(".sidebar-brand").after(menu);
	};
	addEventListener("DOMContentLoaded", () => load(root, () => load(`${root}../`, null)));
})();
